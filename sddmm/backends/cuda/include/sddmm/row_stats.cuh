// What the gradients of all scores of a row share.
#pragma once

namespace sddmm {

// The logarithm of the sum of exponentials of a row of Q, and the sum of dO * O, less the gradient of
// that logarithm. Together, so that one load has both.
struct alignas(8) RowStats {
  float lse, delta;
};

}  // namespace sddmm
