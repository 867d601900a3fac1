// Natural-gradient variational inference, one pass over the weights each: a draw from the posterior, a
// step of mean and curvature, and Adam's step for what has no posterior. The formulas are those of
// core/natural.py. Included inside the namespace of the instruction set.
//
// Plain loops, which compilers turn into vectors: the arrays never overlap (ivdep: there
// are more of them than a compiler checks at run time), and what a call does not have it knows.

// mean = theta; theta += eps / sqrt(size * (h + decay)), eps the normals of the seed from `first` on.
template <class T, bool DECAYS>
void natural_draw(const GsNatural& a, int64_t from, int64_t to) {
  T* __restrict theta = static_cast<T*>(a.theta);
  T* __restrict mean = static_cast<T*>(a.mean);
  T* __restrict eps = static_cast<T*>(a.eps);
  const T* __restrict h = static_cast<const T*>(a.curvature);
  const T* __restrict decays = static_cast<const T*>(a.decays);
  const T size = static_cast<T>(a.size), common = static_cast<T>(a.decay);
  normals(a.seed, a.first + static_cast<uint64_t>(from), to - from, eps + from);
#pragma GCC ivdep
  for (int64_t i = from; i < to; ++i) {
    const T decay = DECAYS ? decays[i] : common;
    mean[i] = theta[i];
    theta[i] += eps[i] / std::sqrt(size * (h[i] + decay));
  }
}

// The curvature from eps * gradient, then the mean, which theta holds by now. PRODUCT: that product is
// given, the sum over several draws.
template <class T, bool ADAM, bool DECAYS, bool PRODUCT>
void natural_step(const GsNatural& a, int64_t from, int64_t to) {
  T* __restrict theta = static_cast<T*>(a.theta);
  T* __restrict m = static_cast<T*>(a.momentum);
  T* __restrict v = static_cast<T*>(a.square);
  T* __restrict h = static_cast<T*>(a.curvature);
  const T* __restrict gradient = static_cast<const T*>(a.gradient);
  const T* __restrict product = static_cast<const T*>(PRODUCT ? a.product : a.eps);
  const T* __restrict decays = static_cast<const T*>(a.decays);
  const T size = static_cast<T>(a.size), common = static_cast<T>(a.decay);
  const T new_curvature = static_cast<T>(a.new_curvature), new_gradient = static_cast<T>(a.new_gradient);
  const T new_square = static_cast<T>(a.new_square), scale = static_cast<T>(a.scale);
  const T lr = static_cast<T>(a.lr), max_step = static_cast<T>(a.max_step);
#pragma GCC ivdep
  for (int64_t i = from; i < to; ++i) {
    const T decay = DECAYS ? decays[i] : common;
    const T before = h[i] + decay, inverse = std::sqrt(size * before);  // 1 / std
    const T noisy = PRODUCT ? product[i] : product[i] * gradient[i];
    const T change = new_curvature * (noisy * inverse - h[i]);
    const T after = h[i] + change + T(0.5) * change * change / before;
    h[i] = after;
    if (ADAM) {
      const T total = gradient[i] + decay * theta[i];
      m[i] += new_gradient * (total - m[i]);
      v[i] += new_square * (total * total - v[i]);
      theta[i] -= lr * m[i] / (scale * std::sqrt(v[i]) + T(1e-8));
    } else {
      m[i] += new_gradient * (gradient[i] - m[i]);
      const T move = lr * (m[i] * scale + decay * theta[i]) / (after + decay);
      const T limit = max_step / inverse;
      const T below = move < limit ? move : limit;
      theta[i] -= below > -limit ? below : -limit;
    }
  }
}

template <class T>
void plain_adam(const GsNatural& a, int64_t from, int64_t to) {
  T* __restrict theta = static_cast<T*>(a.theta);
  T* __restrict m = static_cast<T*>(a.momentum);
  T* __restrict v = static_cast<T*>(a.square);
  const T* __restrict gradient = static_cast<const T*>(a.gradient);
  const T new_gradient = static_cast<T>(a.new_gradient), new_square = static_cast<T>(a.new_square);
  const T lr = static_cast<T>(a.lr), scale = static_cast<T>(a.scale);
#pragma GCC ivdep
  for (int64_t i = from; i < to; ++i) {
    m[i] += new_gradient * (gradient[i] - m[i]);
    v[i] += new_square * (gradient[i] * gradient[i] - v[i]);
    theta[i] -= lr * m[i] / (scale * std::sqrt(v[i]) + T(1e-8));
  }
}

template <class T, bool DECAYS>
void natural_task(const GsNatural& a, int64_t from, int64_t to) {
  switch (a.task) {
    case GS_NATURAL_DRAW:
      return natural_draw<T, DECAYS>(a, from, to);
    case GS_NATURAL_ADAM:
      return a.product ? natural_step<T, true, DECAYS, true>(a, from, to)
                       : natural_step<T, true, DECAYS, false>(a, from, to);
    case GS_NATURAL_IVON:
      return a.product ? natural_step<T, false, DECAYS, true>(a, from, to)
                       : natural_step<T, false, DECAYS, false>(a, from, to);
    default:
      return plain_adam<T>(a, from, to);
  }
}
