# The broker: one member of a cluster. Non-root; works with a read-only root file system, with
# writable /var/lib/brokerd (its data) and /tmp.
FROM python:3.11-slim AS build
WORKDIR /src
COPY requirements/build.txt requirements/
RUN pip install --no-cache-dir --require-hashes -r requirements/build.txt
COPY pyproject.toml LICENSE ./
COPY brokerd brokerd
COPY crds crds
COPY operator operator
COPY telemetry telemetry
# The readme is for people, not for an image: its changes do not rebuild one.
RUN touch README.md \
    && pip wheel --no-cache-dir --no-deps --no-build-isolation -w /dist . \
    && pip install --no-cache-dir --no-deps --no-index --prefix /install /dist/*.whl

FROM python:3.11-slim
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin brokerd \
    && install -d -o 10001 -g 10001 -m 0700 /var/lib/brokerd
COPY requirements/broker.txt /opt/brokerd/
RUN pip install --no-cache-dir --require-hashes -r /opt/brokerd/broker.txt
COPY --from=build /install /usr/local
ENV HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
LABEL org.opencontainers.image.title="brokerd" org.opencontainers.image.licenses="Apache-2.0"
USER 10001:10001
WORKDIR /tmp
# AMQPS, AMQP, gRPC (admin, messages, telemetry), peers, HTTP (health, metrics)
EXPOSE 5671 5672 5680 5690 15692
ENTRYPOINT ["python", "-m", "brokerd"]
CMD ["serve", "--data-dir", "/var/lib/brokerd"]
