# One image for every command.  `up`, `apiserver` and `controllers` run as they are, on a read-only file system; `proxy`
# wants user 0, CAP_NET_ADMIN and the host's network, `observe` CAP_NET_RAW, too.
#
#   make image                                                   # build it without Docker, and try it
#   docker build -t sliceplane:0.1.0 .
#   docker run --rm --read-only -p 127.0.0.1:6443:6443 -v plane:/var/lib/sliceplane sliceplane:0.1.0 up
#
# The digest is that of the index for all architectures.  A newer one: `docker buildx imagetools inspect
# python:3.11-slim-bookworm`, line "Digest".  Any Debian 12 that has python3 with venv serves as well.
ARG BASE=docker.io/library/python:3.11-slim-bookworm@sha256:528257d48c1da0dcecc2e725d1ae34498d60c965f1241e39cd6a85a8859bdf84
FROM ${BASE} AS build
WORKDIR /build
RUN python3 -m venv --without-pip /opt/sliceplane && python3 -m venv /opt/builder
COPY requirements.lock requirements-build.lock ./
# pip verifies a hash for every download; the programs that build the package do not go into the image.  Nothing is
# compiled twice: under an emulator that takes minutes.
RUN /opt/builder/bin/pip install --no-cache-dir --no-compile --require-hashes -r requirements-build.lock \
 && PIP_PYTHON=/opt/sliceplane/bin/python \
    /opt/builder/bin/pip install --no-cache-dir --no-compile --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY src src
# Compiled here: the file system is read-only where it runs.
RUN /opt/builder/bin/pip wheel --no-index --no-deps --no-build-isolation --wheel-dir wheels . \
 && PIP_PYTHON=/opt/sliceplane/bin/python \
    /opt/builder/bin/pip install --no-compile --no-index --no-deps wheels/*.whl \
 && /opt/sliceplane/bin/python -m compileall -q /opt/sliceplane/lib

FROM ${BASE}
# What node proxy and observer run.  The user has a name; its folder is there with its owner, which an empty volume takes over.
RUN apt-get update \
 && apt-get install -y --no-install-recommends nftables iptables iproute2 conntrack \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* \
 && echo 'sliceplane:x:65532:' >> /etc/group \
 && echo 'sliceplane:x:65532:65532:Sliceplane:/var/lib/sliceplane:/usr/sbin/nologin' >> /etc/passwd \
 && install -d -o 65532 -g 65532 -m 0700 /var/lib/sliceplane
COPY --from=build /opt/sliceplane /opt/sliceplane
# XDG_DATA_HOME: every command finds the plane's folder there, /var/lib/sliceplane, without a flag.  In a container
# nobody else reaches loopback, so servers listen on all addresses.
ENV PATH=/opt/sliceplane/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
    HOME=/var/lib/sliceplane XDG_DATA_HOME=/var/lib \
    SLICEPLANE_UP_BIND_ADDRESS=0.0.0.0 SLICEPLANE_APISERVER_BIND_ADDRESS=0.0.0.0
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Sliceplane" \
      org.opencontainers.image.description="A Kubernetes-compatible service-discovery plane: EndpointSlices from API to kernel" \
      org.opencontainers.image.source="https://github.com/sliceplane/sliceplane" \
      org.opencontainers.image.documentation="https://github.com/sliceplane/sliceplane/blob/main/docs/deploy.md" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
VOLUME ["/var/lib/sliceplane"]
# the API; health and metrics of controllers; health and metrics of the node proxy
EXPOSE 6443 10257 10256 10249
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["python3", "-m", "sliceplane.cli.alive"]
USER 65532:65532
WORKDIR /var/lib/sliceplane
ENTRYPOINT ["sliceplane"]
CMD ["--help"]
