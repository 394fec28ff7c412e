"""From the vertices of a task to one streaming DataFrame, and all that is wrong with them."""
