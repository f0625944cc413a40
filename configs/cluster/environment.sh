# The environment of every Ray process of the cluster. Every command of the `ray up` files sources
# this on its node, so that the head and all workers agree. ~/.bashrc sources it too, so that
# commands typed on a node, such as `ray status`, work.

export PATH="$HOME/squadron/.venv/bin:$PATH"

# By default Ray is open: anyone who reaches its port can run code. With this it does not start
# without ~/.ray/auth_token, and rejects everyone who does not send that token.
export RAY_AUTH_MODE=token
export RAY_USAGE_STATS_ENABLED=0

# Ray starts its workers at nice 15, and `ray up` runs its commands with one OpenMP thread: the
# processes that compute would inherit both.
export RAY_worker_niceness=0
unset OMP_NUM_THREADS PYTHONWARNINGS
# An actor that requests no GPU keeps CUDA_VISIBLE_DEVICES as it is; later versions of Ray do so
# anyway.
export RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO=0

# glibc gives each of a process' many threads a heap of its own, which never shrinks below its own
# peak: memory would grow for hours. With two heaps it settles within minutes.
export MALLOC_ARENA_MAX=2

# A node whose processes die is noticed within 2 s anyway. One that freezes or loses its network is
# declared dead after 3 missed answers of (1 s apart + 2 s to answer): 9 s instead of Ray's 64.
export RAY_health_check_initial_delay_ms=5000
export RAY_health_check_period_ms=1000
export RAY_health_check_timeout_ms=2000
export RAY_health_check_failure_threshold=3
# A node that cannot reach the head exits, instead of holding its devices for minutes. This is also
# how workers end after `ray down`, which stops Ray on the head only.
export RAY_gcs_rpc_server_reconnect_timeout_s=20

# The head's GCS keeps what it knows in this folder, and keep_gcs.sh starts it again if it dies:
# otherwise the whole cluster ends with it. A Redis of yours instead: export
# RAY_REDIS_ADDRESS=HOST:PORT here, without these two lines.
export RAY_gcs_storage=rocksdb
export RAY_gcs_storage_path="$HOME/.squadron-gcs"

# Autoscaler v2, the default of `ray up`, counts the head among the workers of a `local` cluster and
# starts one too few.
export RAY_enable_autoscaler_v2=0

# The address by which the launcher reached this node: the one in the cluster file, whatever other
# networks it has.
read -r _ _ NODE_IP _ <<<"${SSH_CONNECTION:-}"
export NODE_IP

ulimit -Sn 65536 2>/dev/null || ulimit -Sn "$(ulimit -Hn)"
