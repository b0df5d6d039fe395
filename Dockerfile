FROM python:3.13-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY shardbus shardbus
COPY cli cli
RUN pip wheel --no-cache-dir --wheel-dir /wheels '.[examples,otlp]'

FROM python:3.13-slim
# The state directory holds SQLite files. Any user may write there, so that the image also runs as a
# user of the cluster's choice, and with a read-only root.
RUN useradd --system --uid 10001 --create-home shardbus \
    && install -d -m 1777 /var/lib/shardbus \
    && install -d -o 10001 /etc/shardbus
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels 'shardbus[examples,otlp]'
WORKDIR /app
COPY examples examples
ENV XDG_STATE_HOME=/var/lib/shardbus
VOLUME /var/lib/shardbus
# By number, so that runAsNonRoot of Kubernetes accepts it.
USER 10001
EXPOSE 7355 7356 8558
HEALTHCHECK --interval=10s --timeout=6s --start-period=30s --retries=3 CMD ["shardbus", "health"]
ENTRYPOINT ["shardbus"]
CMD ["node", "start", "examples.flights:bus"]
