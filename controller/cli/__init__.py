# SPDX-License-Identifier: Apache-2.0
"""Commands: argument parsing, tables and progress bars. No logic.

Each command is a module with `HELP: str`, `configure(parser)` and `run(args) -> int`, listed in
`controller.cli.main.COMMANDS`.
"""
