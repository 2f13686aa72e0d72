#!/bin/bash
# Entry point of the telemetry image. Spark on Kubernetes starts an executor pod with the one argument
# `executor` and everything else in the environment; any other command is run as it stands.
set -euo pipefail
if [ "${1:-}" != executor ]; then
  exec "$@"
fi

# SPARK_JAVA_OPT_0..n hold the executor's Java options, among them the --add-opens that Java 17 needs.
options=()
while read -r name; do
  options+=("${!name}")
done < <(compgen -e | grep -E '^SPARK_JAVA_OPT_[0-9]+$' | sort -t_ -k4 -n)

exec "$JAVA_HOME/bin/java" "${options[@]}" \
  -Xms"$SPARK_EXECUTOR_MEMORY" -Xmx"$SPARK_EXECUTOR_MEMORY" \
  -cp "${SPARK_CONF_DIR:-$SPARK_HOME/conf}:$SPARK_HOME/jars/*" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "$SPARK_DRIVER_URL" \
  --executor-id "$SPARK_EXECUTOR_ID" \
  --cores "$SPARK_EXECUTOR_CORES" \
  --app-id "$SPARK_APPLICATION_ID" \
  --hostname "$SPARK_EXECUTOR_POD_IP" \
  --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
  --podName "$SPARK_EXECUTOR_POD_NAME"
