"""The pages of a node for its operators, by subject: `admin.page_table` lists the modules."""
