"""Promotion stages and what happens in them: serving logs, monitors, escalation, routes.

`documents` is what a contract says of them; `log` reads what serving wrote; `monitor` holds clauses against it at every
look; `stages` moves a rollout; `routes` is what the router follows.
"""
