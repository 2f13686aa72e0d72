# The broker: one member of a cluster, or with nothing configured a broker by itself:
#   docker run -p 5672:5672 -p 15672:15672 localhost/brokerd:dev
# Non-root; works with a read-only root file system, with writable /var/lib/brokerd (its data) and
# /tmp.
FROM python:3.11-slim AS wheel
WORKDIR /src
COPY requirements/build.txt requirements/
RUN pip install --no-cache-dir --require-hashes -r requirements/build.txt
# For the compiled form (docs/adr/0037). What `make compiled` made of these sources for this C library
# is taken; otherwise it is compiled here.
RUN apt-get update \
    && apt-get install -y --no-install-recommends binutils gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml LICENSE ./
COPY tools/compiled.py tools/hatch_build.py tools/
COPY LICENSE build/compiled* build/compiled/
COPY brokerd brokerd
COPY crds crds
COPY operator operator
COPY telemetry telemetry
# The readme is for people, not for an image: its changes do not rebuild one.
# A wheel of plain Python is not what this image is. A module that was compiled needs no bytecode.
RUN touch README.md \
    && HATCH_BUILD_HOOK_ENABLE_CUSTOM=true pip wheel --no-cache-dir --no-deps --no-build-isolation -w /dist . \
    && pip install --no-cache-dir --no-deps --no-index --prefix /install /dist/*.whl \
    && cd /install && rm -r lib/python3.11/site-packages/brokerd_operator \
        lib/python3.11/site-packages/brokerd_telemetry bin/brokerd-operator bin/kubectl-brokerd \
    && cd lib/python3.11/site-packages && test -e brokerd/_compiled/complete \
    && find brokerd/_compiled -name '*.so' -exec strip --strip-unneeded {} + \
    && find brokerd/_compiled/brokerd -name '*.so' | while read -r file; do \
        name=$(basename "${file%%.*}"); rm -f "$(dirname "${file#brokerd/_compiled/}")/__pycache__/$name".*.pyc; \
    done

# What makes packages smaller stays in this stage: strip drops debugging symbols (of uvloop's 13 MB
# 2 MB are left), and bytecode is compiled once, for a root file system that is read-only. Rich brings
# lexers of 500 languages (8 MB) for colouring source code, which nothing here prints; cffi its compiler
# of C declarations, which what was built with it does not need; regex its tests; pydantic its whole
# first version.
FROM python:3.11-slim AS packages
RUN apt-get update \
    && apt-get install -y --no-install-recommends binutils \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /install/lib/python3.11/site-packages
COPY requirements/broker.txt /src/
RUN pip install --no-cache-dir --no-compile --require-hashes --prefix /install -r /src/broker.txt \
    && find . -type f \( -name '*.so' -o -name '*.so.[0-9]*' \) -exec strip --strip-unneeded {} + \
    && find . \( -name '*.pyi' -o -name '*.pyx' -o -name '*.pxd' \) -delete \
    && find pygments/lexers -name '*.py' ! -name __init__.py ! -name _mapping.py -delete \
    && rm -r regex/tests cffi pycparser pydantic/v1
RUN python -m compileall -q --invalidation-mode unchecked-hash .

FROM python:3.11-slim
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin brokerd \
    && install -d -o 10001 -g 10001 -m 0700 /var/lib/brokerd
COPY --from=packages /install /usr/local
COPY --from=wheel /install /usr/local
# Nobody reaches a container over its own loopback: as in RabbitMQ's image, guest may log in from
# everywhere, until BROKERD_AUTH_ADMIN_USER and _PASSWORD name somebody else.
ENV HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 BROKERD_AUTH_LOOPBACK_USERS=
LABEL org.opencontainers.image.title="brokerd" org.opencontainers.image.licenses="Apache-2.0"
USER 10001:10001
WORKDIR /tmp
VOLUME /var/lib/brokerd
# AMQPS, AMQP, gRPC (admin, messages, telemetry), peers, management, HTTP (health, metrics)
EXPOSE 5671 5672 5680 5690 15671 15672 15692
# Docker's way to ask what probes ask on Kubernetes.  On a machine at ten times its load Python alone
# takes seconds to start: with 5 s all members of the compose file ran and were called unhealthy.
HEALTHCHECK --interval=10s --timeout=30s --start-period=60s CMD ["python", "-m", "brokerd", "health"]
ENTRYPOINT ["python", "-m", "brokerd"]
CMD ["serve", "--data-dir", "/var/lib/brokerd"]
