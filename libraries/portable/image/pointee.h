// Finds the value that a pointer of a known type leads to within an object.
#pragma once

#include <cstdint>
#include <vector>

#include "libraries/portable/image/layout.h"

namespace shadowib::portable {

// The type of the elements of arrays of arrays, vectors and complex numbers; else the type itself.
TypeIndex innermost_type(const Layouts& layouts, TypeIndex type);

// As path_to, for a pointer to `element`, or to no known type. Where one member ends and the next begins, the
// pointer's type tells which one is meant; the next if it tells nothing.
std::vector<std::uint64_t> way_to(const Layouts& layouts, TypeIndex type, const Shape& shape, std::uint64_t offset,
                                  TypeIndex element);

// False if a pointer to `element` says that other values lie at `offset` of an object than its type says. Pointers to
// characters, to void and to no known type say nothing.
bool leads_to(const Layouts& layouts, TypeIndex type, const Shape& shape, std::uint64_t offset, TypeIndex element);

}  // namespace shadowib::portable
