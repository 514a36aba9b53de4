#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains the classifier of the digits example and writes digits.safetensors.

Needed only to make that file again; the demo itself reads the file that lies here.

    python3 -m venv venv && venv/bin/pip install numpy scikit-learn safetensors
    venv/bin/python train.py digits.safetensors

The images are the 1,797 of scikit-learn's load_digits(): see LICENSE for their source. The network is one hidden
layer, relu(image / 16 @ w1 + b1) @ w2 + b2, trained by gradient descent in NumPy from a fixed seed on 1,200 images;
the other 597 are held out (is_held_out is 1) and never seen in training.
"""
import sys

import numpy as np
from safetensors.numpy import save_file
from sklearn.datasets import load_digits

HIDDEN, EPOCHS, BATCH, RATE, MOMENTUM, DECAY = 48, 120, 50, 0.05, 0.9, 1e-4


def train(x, y, rng):
    """Returns w1, b1, w2, b2 after EPOCHS of stochastic gradient descent with momentum."""
    params = [
        rng.normal(0, np.sqrt(2 / 64), (64, HIDDEN)), np.zeros(HIDDEN),
        rng.normal(0, np.sqrt(2 / HIDDEN), (HIDDEN, 10)), np.zeros(10),
    ]
    speed = [np.zeros_like(p) for p in params]
    for _ in range(EPOCHS):
        order = rng.permutation(len(x))
        for rows in np.split(order, len(x) // BATCH):
            w1, b1, w2, b2 = params
            hidden = np.maximum(x[rows] @ w1 + b1, 0)
            logits = hidden @ w2 + b2
            p = np.exp(logits - logits.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            p[np.arange(len(rows)), y[rows]] -= 1
            p /= len(rows)
            back = (p @ w2.T) * (hidden > 0)
            grads = [x[rows].T @ back + DECAY * w1, back.sum(0), hidden.T @ p + DECAY * w2, p.sum(0)]
            for i, grad in enumerate(grads):
                speed[i] = MOMENTUM * speed[i] - RATE * grad
                params[i] += speed[i]
    return [p.astype(np.float32) for p in params]


def main():
    digits = load_digits()
    images = digits.images.astype(np.uint8)
    labels = digits.target.astype(np.uint8)
    rng = np.random.default_rng(1797)
    is_held_out = np.ones(len(images), dtype=bool)
    is_held_out[rng.permutation(len(images))[:1200]] = False

    x = images.reshape(-1, 64).astype(np.float64) / 16
    w1, b1, w2, b2 = train(x[~is_held_out], labels[~is_held_out], rng)
    scores = np.maximum(x @ w1 + b1, 0) @ w2 + b2
    right = scores.argmax(axis=1) == labels
    print(f"train {right[~is_held_out].mean():.4f}, held out {right[is_held_out].mean():.4f}")

    save_file(
        {"images": images, "labels": labels, "is_held_out": is_held_out,
         "w1": w1, "b1": b1, "w2": w2, "b2": b2},
        sys.argv[1],
        metadata={
            "source": "UCI Optical Recognition of Handwritten Digits, E. Alpaydin and C. Kaynak, CC BY 4.0",
            "model": "relu(images / 16 @ w1 + b1) @ w2 + b2",
        },
    )


if __name__ == "__main__":
    main()
