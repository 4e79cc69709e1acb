#include "hooks/store/piece.h"

#include <cstdlib>
#include <sstream>

#include "hooks/job/near_directory.h"

namespace shadowib {

bool valid_piece_name(const std::string& name) {
  return !name.empty() && name[0] != '.' && name.size() < 200 && name.find('/') == std::string::npos &&
         name.find_first_of(" :\n") == std::string::npos && name != kNearHome;
}

bool valid_set_id(const std::string& set_id) {
  return set_id.size() == 32 && set_id.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string encode_pieces(const std::vector<Piece>& pieces) {
  std::string text;
  for (const Piece& piece : pieces)
    text += (text.empty() ? "" : " ") + piece.file + ":" + std::to_string(piece.bytes) + ":" + piece.xxh3;
  return text;
}

Status decode_pieces(const std::string& text, std::vector<Piece>* pieces) {
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const std::size_t first = word.find(':'), second = word.find(':', first + 1);
    Piece piece;
    if (second != std::string::npos) {
      piece = {word.substr(0, first), std::strtoull(word.c_str() + first + 1, nullptr, 10), word.substr(second + 1)};
    }
    if (!valid_piece_name(piece.file) || !valid_set_id(piece.xxh3))
      return Status::of(Code::kVersion, 0, "'%.100s' is no piece of a set", word.c_str());
    pieces->push_back(std::move(piece));
  }
  return {};
}

}  // namespace shadowib
