# Install rules, package files and the uninstall target.
