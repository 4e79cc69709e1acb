// Fuzz target: what a rank writes to its launcher. The first byte says in how large pieces it comes.
#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "hooks/launcher/pmi_request.h"

namespace {

using shadowib::PmiRequest;

std::vector<PmiRequest> in_pieces(std::string_view text, std::size_t piece, bool* between) {
  shadowib::PmiRequests requests;
  std::vector<PmiRequest> found;
  for (; !text.empty(); text.remove_prefix(std::min(piece, text.size()))) {
    std::string_view bytes = text.substr(0, piece);
    for (PmiRequest request; requests.take(&bytes, &request);) found.push_back(request);
  }
  *between = requests.is_between();
  return found;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  bool whole = false, cut = false;
  const std::vector<PmiRequest> once = in_pieces(text, text.size(), &whole);
  const std::vector<PmiRequest> again = in_pieces(text, 1 + data[0] % 64u, &cut);
  // The same requests, whatever the pieces.
  if (once.size() != again.size() || whole != cut) __builtin_trap();
  for (std::size_t i = 0; i < once.size(); ++i)
    if (once[i].command != again[i].command || once[i].words != again[i].words) __builtin_trap();
  return 0;
}
