FROM python:3.13-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY shardbus shardbus
COPY cli cli
RUN pip wheel --no-cache-dir --wheel-dir /wheels '.[examples]'

FROM python:3.13-slim
RUN useradd --system --uid 10001 --create-home shardbus
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels 'shardbus[examples]'
WORKDIR /app
COPY examples examples
USER shardbus
EXPOSE 7355 7356 8558
HEALTHCHECK --interval=5s --timeout=6s --start-period=30s --retries=3 CMD ["shardbus", "health"]
ENTRYPOINT ["shardbus"]
CMD ["node", "start", "examples.flights:bus"]
