"""The tools, in the order of their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airlox.mcp.tools import items, jobs, runners, sessions

if TYPE_CHECKING:
    from airlox.mcp.tool import Tool

TOOLS: Final[tuple[Tool, ...]] = (
    runners.approve_runner,
    sessions.close_session,
    sessions.create_session,
    items.delivery_status,
    sessions.export_audit,
    sessions.get_invites,
    items.get_item,
    jobs.get_result,
    sessions.join_session,
    items.list_items,
    runners.list_runners,
    runners.reject_runner,
    sessions.revoke_role,
    jobs.run,
    jobs.run_python,
    items.save_file,
    items.send_file,
    items.send_text,
    sessions.session_info,
)
