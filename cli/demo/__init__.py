"""`duewheel demo`: the example of unpaid orders on a real Airflow, a real broker and a real Spark.

command             the command line
flow                start, place, pay, watch, verify, end
verify, sql/        the verdict, by the shop's table and the broker's records
progress            the lines on standard error
airflow_standalone  `airflow standalone`, for the benchmarks as well
airflow_api         the calls of Airflow's REST API
keeper, processes   children that end with the demo, however it ends
"""
