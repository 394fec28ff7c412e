"""Tables of databases, by JDBC (K4): what a sink does is in `jdbc`, how a database says it in its dialect."""
