"""What tests share: parts of the system, people of a session, clocks, strategies."""
