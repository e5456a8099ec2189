# SPDX-License-Identifier: Apache-2.0
"""Starting a whole deployment on one machine, keeping it up and taking it down.

Owns: the processes of a deployment from their command lines (plan.py) to their end
(supervisor.py), and the promise that none of them outlives the launcher (leash.py, guard.py).
Does not own: what the processes do.
"""

from controller.runtime.launcher.deployment import Deployment, plan_here
from controller.runtime.launcher.errors import LaunchError
from controller.runtime.launcher.plan import ProcessSpec, Role, plan_processes
from controller.runtime.launcher.signals import CancelOnSignals
from controller.runtime.launcher.supervisor import ProcessStatus, State

__all__ = [
    "CancelOnSignals",
    "Deployment",
    "LaunchError",
    "ProcessSpec",
    "ProcessStatus",
    "Role",
    "State",
    "plan_here",
    "plan_processes",
]
