# SPDX-License-Identifier: Apache-2.0
"""What routing costs against the best that could have been done with the same arrivals. Pure."""
