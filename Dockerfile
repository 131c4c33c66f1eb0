# canopy, without root, on a read-only file system and without network:
#
#   docker build -t canopy .
#   docker run --rm --init --read-only --network none --tmpfs /tmp -v "$PWD":/data canopy \
#     refine --encoder runs/quickstart/export --query "Who wound the clock?" --input passage.txt
#
# docs/operations.md has the service, nightly training and what has to be writable.
ARG NODE_IMAGE=node:22-bookworm-slim

FROM ${NODE_IMAGE} AS build
WORKDIR /app
COPY package.json package-lock.json .npmrc ./
RUN npm ci --no-audit --no-fund
COPY . .
# what runs is built, then left alone: no tools of development, no binaries of other systems
RUN npm run build \
 && npm prune --omit=dev --no-audit --no-fund \
 && find node_modules/onnxruntime-node/bin -mindepth 2 -maxdepth 2 -type d ! -name linux -exec rm -rf {} +

FROM ${NODE_IMAGE}
# videos only: --build-arg PACKAGES=ffmpeg
ARG PACKAGES=""
# hadolint ignore=DL3008
RUN if [ -n "$PACKAGES" ]; then apt-get update && apt-get install -y --no-install-recommends $PACKAGES \
 && rm -rf /var/lib/apt/lists/*; fi
WORKDIR /app
COPY --from=build /app/package.json /app/LICENSE ./
COPY --from=build /app/node_modules ./node_modules
COPY --from=build /app/dist ./dist
COPY --from=build /app/configs ./configs
COPY --from=build /app/datasets/sample ./datasets/sample
COPY --from=build /app/models ./models
COPY --from=build /app/examples ./examples
# a name that is no folder is an error, not a download
ENV NODE_ENV=production HF_HUB_OFFLINE=1 HOME=/tmp
USER 1000:1000
WORKDIR /data
ENTRYPOINT ["node", "/app/dist/cli/main.js"]
CMD ["--help"]
