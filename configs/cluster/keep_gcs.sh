#!/bin/bash
# On the head, after `ray start`: leaves a process behind that starts Ray's GCS again whenever it
# dies, and ends with Ray. Its log is ~/gcs_keeper.log.
setsid nohup python -m cluster.launch.node.gcs_keeper --port 6379 </dev/null >>"$HOME/gcs_keeper.log" 2>&1 &
