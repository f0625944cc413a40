# What every Ray process of the cluster runs under. Every command of the `ray up` files sources this on its node, so that
# the head and all workers agree; ~/.bashrc sources it too, so that `ray status` typed on a node finds its way.

export PATH="$HOME/squadron/.venv/bin:$PATH"

# Ray runs open by default: whoever reaches its port runs code. With this it refuses to start without ~/.ray/auth_token
# and refuses everybody who does not show that token.
export RAY_AUTH_MODE=token
export RAY_USAGE_STATS_ENABLED=0

# Ray starts its workers at nice 15, and `ray up` runs its commands with one OpenMP thread: both would be inherited by
# the processes that compute.
export RAY_worker_niceness=0
unset OMP_NUM_THREADS PYTHONWARNINGS
# An actor that asks for no GPU keeps CUDA_VISIBLE_DEVICES as it is, which is what later versions of Ray do anyway.
export RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO=0

# glibc gives each of a process' many threads a heap of its own, which never shrinks below its own peak: memory would grow
# for hours. Two heaps are full within minutes.
export MALLOC_ARENA_MAX=2

# A node whose processes die is noticed in 2 s anyway. One that freezes or loses its network is declared dead after
# 3 missed answers of (1 s apart + 2 s to answer): 9 s instead of Ray's 64.
export RAY_health_check_initial_delay_ms=5000
export RAY_health_check_period_ms=1000
export RAY_health_check_timeout_ms=2000
export RAY_health_check_failure_threshold=3
# A node that cannot reach the head gives up in its turn, instead of holding its devices for minutes. This is also how
# workers end after `ray down`, which stops Ray on the head only.
export RAY_gcs_rpc_server_reconnect_timeout_s=20

# Autoscaler v2, which `ray up` asks for by default, counts the head among the workers of a `local` cluster and starts
# one too few.
export RAY_enable_autoscaler_v2=0

# The address under which the launcher reached this node: the one in the cluster file, whatever other networks it has.
read -r _ _ NODE_IP _ <<<"${SSH_CONNECTION:-}"
export NODE_IP

ulimit -Sn 65536 2>/dev/null || ulimit -Sn "$(ulimit -Hn)"
