"""The version of this release, in the only place that has it: the package, `shardbus version`, the
pages of a node and the bill of materials read it here.

The versions of protocols and of stored formats are beside the things they number, because they
change by themselves; docs/upgrading.md says how two versions agree.

Source: docs/release.md.
"""

VERSION = "0.2.0"
