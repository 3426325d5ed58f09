"""The tools, in the order of their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airlox.mcp.tools import jobs, runners, sessions

if TYPE_CHECKING:
    from airlox.mcp.tool import Tool

TOOLS: Final[tuple[Tool, ...]] = (
    runners.approve_runner,
    sessions.close_session,
    sessions.create_session,
    sessions.export_audit,
    sessions.get_invites,
    jobs.get_result,
    sessions.join_session,
    runners.list_runners,
    runners.reject_runner,
    sessions.revoke_role,
    jobs.run,
    jobs.run_python,
    sessions.session_info,
)
