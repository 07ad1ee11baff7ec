# Training, simulation, labelling and export on x86-64 with an NVIDIA GPU (driver 580 or newer).
#   docker build --file deploy/containers/gpu.Dockerfile --tag mneme-vla .
#   docker run --rm --gpus all --shm-size 8g --volume "$PWD/runs:/opt/mneme-vla/runs" mneme-vla doctor
FROM nvidia/cuda:13.0.2-base-ubuntu24.04
RUN apt-get update \
    && apt-get install --yes --no-install-recommends \
        ffmpeg g++ libegl1 libegl-mesa0 libgl1-mesa-dri make python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/mneme-vla
COPY . .
RUN PYTHON=python3.12 make .venv/.installed
# "all" brings the driver's EGL, with which MuJoCo draws on the GPU.
ENV PATH=/opt/mneme-vla/.venv/bin:$PATH MUJOCO_GL=egl NVIDIA_DRIVER_CAPABILITIES=all
ENTRYPOINT ["vla"]
CMD ["doctor"]
