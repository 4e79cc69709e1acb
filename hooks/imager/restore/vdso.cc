#include "hooks/imager/restore/vdso.h"

#include <elf.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace shadowib {
namespace {

bool is_special(const std::string& name) {
  return name == "[vdso]" || name.rfind("[vvar", 0) == 0 || name.rfind("[vvclock", 0) == 0;
}

std::string name_of(const VdsoRecord::Piece& piece) {
  return std::string(piece.name, ::strnlen(piece.name, sizeof(piece.name)));
}

struct VdsoFunction {
  std::string name;
  std::uint64_t offset, bytes;
};

// What a vdso exports. Empty if `elf` is none that we can read: that of an image may be anything.
std::vector<VdsoFunction> functions_of(const std::uint8_t* elf, std::uint64_t bytes) {
  const auto at = [&]<typename T>(std::uint64_t offset, T* to) {
    if (offset > bytes || bytes - offset < sizeof(T)) return false;
    std::memcpy(to, elf + offset, sizeof(T));
    return true;
  };
  std::vector<VdsoFunction> functions;
  Elf64_Ehdr header;
  if (!at(0, &header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return functions;
  std::uint64_t symbols = 0, names = 0, name_bytes = 0;
  for (int i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr program;
    if (!at(header.e_phoff + static_cast<std::uint64_t>(i) * sizeof(program), &program)) return functions;
    if (program.p_type != PT_DYNAMIC) continue;
    Elf64_Dyn entry;
    for (std::uint64_t d = program.p_offset; at(d, &entry) && entry.d_tag != DT_NULL; d += sizeof(entry)) {
      if (entry.d_tag == DT_SYMTAB) symbols = entry.d_un.d_ptr;
      if (entry.d_tag == DT_STRTAB) names = entry.d_un.d_ptr;
      if (entry.d_tag == DT_STRSZ) name_bytes = entry.d_un.d_val;
    }
  }
  // Linked at 0, tables next to each other: the one ends where the other begins.
  if (symbols == 0 || names <= symbols || names > bytes || name_bytes > bytes - names) return functions;
  Elf64_Sym symbol;
  for (std::uint64_t s = symbols; s + sizeof(symbol) <= names && at(s, &symbol); s += sizeof(symbol)) {
    if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_shndx == SHN_UNDEF) continue;
    if (symbol.st_name >= name_bytes || symbol.st_value >= bytes || symbol.st_size > bytes - symbol.st_value)
      continue;
    const char* name = reinterpret_cast<const char*>(elf + names + symbol.st_name);
    functions.push_back(
        {std::string(name, strnlen(name, name_bytes - symbol.st_name)), symbol.st_value, symbol.st_size});
  }
  return functions;
}

// movabs $target, %r11; jmp *%r11
constexpr std::size_t kJumpBytes = 13;
void write_jump(std::uint8_t* at, std::uint64_t target) {
  const std::uint8_t opcodes[] = {0x49, 0xbb}, jump[] = {0x41, 0xff, 0xe3};
  std::memcpy(at, opcodes, 2);
  std::memcpy(at + 2, &target, 8);
  std::memcpy(at + 10, jump, 3);
}
// mov $-ENOSYS, %rax; ret: libc makes the system call then.
void write_absent(std::uint8_t* at) {
  const std::uint8_t code[] = {0x48, 0xc7, 0xc0, 0xda, 0xff, 0xff, 0xff, 0xc3};
  std::memcpy(at, code, sizeof(code));
}

// The recorded vdso with every function led to that of the same name in `now`, which will be at `moved_to`. False:
// one has no room for a jump, or the recorded one tells nothing.
bool divert(std::vector<std::uint8_t>* recorded, const std::vector<VdsoFunction>& now, std::uint64_t moved_to) {
  const std::vector<VdsoFunction> known = functions_of(recorded->data(), recorded->size());
  for (const VdsoFunction& f : known) {
    if (f.bytes < kJumpBytes) return false;
    auto same = std::find_if(now.begin(), now.end(), [&](const VdsoFunction& n) { return n.name == f.name; });
    if (same != now.end())
      write_jump(recorded->data() + f.offset, moved_to + same->offset);
    else
      write_absent(recorded->data() + f.offset);
  }
  return !known.empty();
}

// Where the image had its vdso, if that has a place and a content.
const VdsoRecord::Piece* recorded_vdso(const LoadedImage& image) {
  for (std::uint32_t i = 0; i < image.vdso.piece_count; ++i)
    if (name_of(image.vdso.pieces[i]) == "vdso" && image.vdso.pieces[i].length == image.vdso_content.size())
      return &image.vdso.pieces[i];
  return nullptr;
}

// Another kernel's: ours goes where nothing is.
bool plan_other(const LoadedImage& image, const std::vector<CurrentMapping>& current, VdsoPlan* plan) {
  const VdsoRecord::Piece* old = recorded_vdso(image);
  if (plan->piece_count == 0 || (old == nullptr && image.vdso.piece_count != 0)) return false;
  std::uint64_t first = ~std::uint64_t{0}, end = 0;
  for (std::uint32_t i = 0; i < plan->piece_count; ++i) {
    first = std::min(first, plan->pieces[i].from);
    end = std::max(end, plan->pieces[i].from + plan->pieces[i].length);
  }
  const std::uint64_t hole = find_hole(image, current, end - first);
  if (hole == 0) return false;
  std::uint64_t vdso_to = 0;
  std::vector<VdsoFunction> now;
  for (std::uint32_t i = 0; i < plan->piece_count; ++i) {
    RestorerVdsoPiece& piece = plan->pieces[i];
    piece.to = hole + (piece.from - first);  // they find each other by their distances
    for (const CurrentMapping& m : current)
      if (m.range.start == piece.from && m.name == "[vdso]") {
        vdso_to = piece.to;
        now = functions_of(reinterpret_cast<const std::uint8_t*>(piece.from), piece.length);
      }
  }
  if (vdso_to == 0) return false;
  plan->taken = {hole, hole + (end - first)};
  if (old == nullptr) return true;  // of a kernel without one: nobody looks for it
  plan->copy_at = old->start;
  plan->copy = image.vdso_content;
  return divert(&plan->copy, now, vdso_to);
}

}  // namespace

Status plan_vdso(const LoadedImage& image, const std::vector<CurrentMapping>& current, VdsoPlan* plan) {
  *plan = VdsoPlan{};
  const VdsoRecord& recorded = image.vdso;
  bool same = true;
  for (const CurrentMapping& m : current) {
    if (!is_special(m.name)) continue;
    if (plan->piece_count == kMaxVdsoPieces)
      return Status(Code::kVersion, 0, "this kernel's vdso has too many parts");
    const std::uint32_t i = plan->piece_count++;
    const std::uint64_t length = m.range.end - m.range.start;
    plan->pieces[i] = {m.range.start, plan->staging_bytes, i < recorded.piece_count ? recorded.pieces[i].start : 0,
                       length};
    plan->staging_bytes += length;
    same = same && i < recorded.piece_count && recorded.pieces[i].length == length &&
           m.name == "[" + name_of(recorded.pieces[i]) + "]" &&
           recorded.pieces[i].start - recorded.pieces[0].start == m.range.start - plan->pieces[0].from;
    if (same && m.name == "[vdso]")
      same = image.vdso_content.size() == length &&
             std::memcmp(image.vdso_content.data(), reinterpret_cast<const void*>(m.range.start), length) == 0;
  }
  if (same && plan->piece_count == recorded.piece_count) return {};
  if (plan_other(image, current, plan)) return {};
  utsname now{};
  ::uname(&now);
  return Status::of(Code::kVersion, 0,
                    "the image was made under Linux %s, whose vdso that of Linux %s here cannot stand for; "
                    "restart under the same kernel",
                    image.kernel.c_str(), now.release);
}

}  // namespace shadowib
