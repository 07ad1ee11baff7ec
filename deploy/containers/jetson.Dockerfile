# Inference on a Jetson with JetPack 6; TensorRT 10.3 and Python 3.10 are those of the base image.
#   docker build --file deploy/containers/jetson.Dockerfile --tag mneme-vla-jetson .
#   docker run --rm --runtime nvidia --volume FOLDER:/model mneme-vla-jetson
# It builds the engines of the exported policy in FOLDER, times them and writes engines.json there.
FROM nvcr.io/nvidia/l4t-jetpack:r36.4.0
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3-libnvinfer python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/mneme-vla
COPY . .
RUN python3 -m venv --system-site-packages .venv \
    && .venv/bin/pip install --no-cache-dir '.[deploy]' 'cuda-bindings==12.*'
ENV PATH=/opt/mneme-vla/.venv/bin:$PATH MNEME_ENGINES=/model/engines
ENTRYPOINT ["vla"]
CMD ["engines", "/model", "--targets", "tensorrt", "onnxruntime", "--out", "/model/engines.json"]
