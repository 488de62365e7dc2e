"""Reports about run folders: pages, tables and figures."""
