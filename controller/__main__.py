# SPDX-License-Identifier: Apache-2.0
"""`python -m controller` is the `equilibrium` command."""

import sys

from controller.cli.main import main

sys.exit(main())
