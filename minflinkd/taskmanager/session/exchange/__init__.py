"""The two ends of an exchange in Spark. The log between them is `taskmanager/exchange`."""
