"""Who may act in place of the policy in practice, a file each; `--help.by NAME` chooses one."""
