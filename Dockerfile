# One image for both roles: `docker run IMAGE coordinator serve`, `docker run IMAGE participant run`.
FROM python:3.11-slim-bookworm AS build

# Another index for torch, such as PyTorch's own index of CPU builds, which makes the image 4 GB smaller.
ARG TORCH_INDEX=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

RUN python -m venv /opt/fedpeer
ENV PATH=/opt/fedpeer/bin:$PATH
RUN pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "torch>=2.4" "torchvision>=0.19"

WORKDIR /src
COPY pyproject.toml README.md ./
COPY mechanism mechanism
COPY coordinator coordinator
COPY participant participant
COPY fedpeer fedpeer
COPY fedpeer_command.py ./
RUN pip install ".[all]"


FROM python:3.11-slim-bookworm

ENV PATH=/opt/fedpeer/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    FEDPEER_STATE=/var/lib/fedpeer

COPY --from=build /opt/fedpeer /opt/fedpeer
RUN groupadd --system --gid 10001 fedpeer \
    && useradd --system --uid 10001 --gid fedpeer --home-dir /var/lib/fedpeer --shell /usr/sbin/nologin fedpeer \
    && install --directory --owner fedpeer --group fedpeer --mode 0700 /var/lib/fedpeer /var/lib/fedpeer-worker

USER 10001:10001
WORKDIR /var/lib/fedpeer
VOLUME /var/lib/fedpeer
# Market (mutual TLS), public (enrolment, ledger, health), metrics.
EXPOSE 7443 7444 9464

STOPSIGNAL SIGTERM
# Asks whichever role this container has; both keep their state in the working folder.
HEALTHCHECK --interval=30s --timeout=5s --start-period=20s --retries=3 CMD ["fedpeer", "health"]

ENTRYPOINT ["fedpeer"]
CMD ["--help"]
