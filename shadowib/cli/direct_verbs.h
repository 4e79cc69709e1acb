// Direct verbs: calls by which a program reaches one vendor's adapter past libibverbs, where nothing shadows them.
#pragma once

#include <string>
#include <vector>

namespace shadowib::cli {

// The symbols among `undefined` that are such calls ("mlx5dv_create_qp"), in their order.
std::vector<std::string> direct_verbs_among(const std::vector<std::string>& undefined);

// A library as the loader would load it; no path: it is not found.
struct LoadedLibrary {
  std::string name, path;
};
// Parses the loader's output for ldd; names without a file of their own (the vdso) are left out.
std::vector<LoadedLibrary> parse_loader_list(const std::string& text);
// All libraries the loader would load with the program, itself excluded. The program is not run. Empty if the loader
// cannot tell.
std::vector<LoadedLibrary> libraries_of(const std::string& program);

}  // namespace shadowib::cli
