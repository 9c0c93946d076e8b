"""Pipeline schedules as tables that can be written, checked and compared, without a job."""
