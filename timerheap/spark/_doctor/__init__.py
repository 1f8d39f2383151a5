"""`doctor`: whether timerheap works on a Spark, as a report that can be sent in."""
