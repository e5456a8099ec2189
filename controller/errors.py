# SPDX-License-Identifier: Apache-2.0
"""The one exception that the command line turns into a single line and exit code 2."""


class UserError(Exception):
    """The operator can fix it: str() says what is wrong, where, and what to do."""
