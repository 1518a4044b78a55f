"""`duewheel demo`: the example of unpaid orders on a real Airflow, a real broker and a real Spark.

commands            the command line
flow                what each command does
supervisor          the process that owns all others, and ends them whatever happens
airflow_standalone  Airflow's parts, for the tests and the benchmarks as well
airflow_api         the calls of Airflow's REST API
steps               place, pay, watch
orders, sql/        what the database is asked
progress, verify    the live view and the verdict
workplace, run      the folder, and what is noted in it
processes           children that can be ended completely
"""
