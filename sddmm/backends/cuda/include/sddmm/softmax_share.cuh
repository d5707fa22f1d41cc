// The shares of nonzeros whose rows the blocks of row_softmax compute.
#pragma once

namespace sddmm {

// The rows of one share: those that begin in it and are not cut, and up to two that are.
struct alignas(16) SoftmaxShare {
  int first, rows, begin, count;  // the first whole row, their number, their nonzeros
  // The row that began in an earlier share and the one that ends in a later: where each begins and
  // ends. Both numbers are equal if there is none.
  int before_begin, before_end, last_begin, last_end;
};

}  // namespace sddmm
