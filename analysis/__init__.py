# SPDX-License-Identifier: Apache-2.0
"""Tables, pictures and reports from records. Nothing on the live path needs this."""
