# One image for every command: `controllers` runs as it is; `proxy` wants user 0, CAP_NET_ADMIN and the host's network.
#
#   docker build -t sliceplane:0.1.0 .
#   docker run --rm sliceplane:0.1.0 --help
FROM python:3.11-slim-bookworm AS build
WORKDIR /build
RUN python -m venv /opt/sliceplane && python -m venv /opt/builder
COPY requirements.lock requirements-build.lock ./
# Whatever is fetched has a hash; what builds the package does not go into the image.
RUN /opt/builder/bin/pip install --no-cache-dir --require-hashes -r requirements-build.lock \
 && /opt/sliceplane/bin/pip install --no-cache-dir --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY src src
# Compiled here: the file system is read-only where it runs.
RUN /opt/builder/bin/pip wheel --no-index --no-deps --no-build-isolation --wheel-dir wheels . \
 && /opt/sliceplane/bin/pip install --no-index --no-deps wheels/*.whl \
 && /opt/sliceplane/bin/python -m compileall -q /opt/sliceplane/lib

FROM python:3.11-slim-bookworm
# What the node proxy runs.
RUN apt-get update \
 && apt-get install -y --no-install-recommends nftables iptables iproute2 conntrack \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/sliceplane /opt/sliceplane
ENV PATH=/opt/sliceplane/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["sliceplane"]
CMD ["--help"]
