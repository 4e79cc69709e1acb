#include "libraries/portable/image/image.h"

#include <algorithm>
#include <cstring>

#include "libraries/portable/image/names.h"
#include "libraries/portable/image/pages.h"
#include "libraries/portable/image/words.h"

namespace shadowib::portable {
namespace {

constexpr char kStreamMagic[] = {'S', 'H', 'A', 'D', 'O', 'W', 'P', '\n'};
constexpr std::uint32_t kLongestText = 64 << 10;

class Out {
 public:
  void number(std::uint64_t value, unsigned bytes) {
    stream_.resize(stream_.size() + bytes);
    put_le(stream_.data() + stream_.size() - bytes, value, bytes);
  }
  void u32(std::uint64_t value) { number(value, 4); }
  void u64(std::uint64_t value) { number(value, 8); }
  void text(const std::string& text) {
    u32(text.size());
    stream_.insert(stream_.end(), text.begin(), text.end());
  }
  void raw(const char* bytes, std::size_t count) { stream_.insert(stream_.end(), bytes, bytes + count); }
  std::vector<unsigned char> take() { return std::move(stream_); }

 private:
  std::vector<unsigned char> stream_;
};

class In {
 public:
  explicit In(const std::vector<unsigned char>& stream) : at_(stream.data()), left_(stream.size()) {}

  const unsigned char* raw(std::uint64_t count) {
    if (count > left_) throw Refused{"the image ends within its tables"};
    const unsigned char* bytes = at_;
    at_ += count, left_ -= count;
    return bytes;
  }
  std::uint64_t number(unsigned bytes) { return get_le(raw(bytes), bytes); }
  std::uint32_t u32() { return static_cast<std::uint32_t>(number(4)); }
  std::uint64_t u64() { return number(8); }
  std::string text() {
    const std::uint32_t count = u32();
    if (count > kLongestText) throw Refused{"a name in the image is too long"};
    return std::string(reinterpret_cast<const char*>(raw(count)), count);
  }
  // A count of entries, of which each has at least `least` bytes.
  std::uint32_t count(unsigned least) {
    const std::uint32_t entries = u32();
    if (entries > left_ / least) throw Refused{"a count in the image is greater than the image"};
    return entries;
  }
  std::uint64_t left() const { return left_; }

 private:
  const unsigned char* at_;
  std::uint64_t left_;
};

void encode_types(Out& out, const Layouts& layouts) {
  out.u32(layouts.types.size());
  for (const LayoutType& type : layouts.types) {
    out.text(type.name);
    out.u32(type.kind), out.u32(type.format), out.u64(type.size), out.u64(type.count), out.u32(type.element);
    out.u32(type.members.size());
    for (const LayoutMember& member : type.members)
      out.text(member.name), out.u32(member.type), out.u64(member.bit_offset), out.u64(member.bit_width);
  }
}

void decode_types(In& in, Layouts& layouts) {
  layouts.types.resize(in.count(36));
  for (LayoutType& type : layouts.types) {
    type.name = in.text();
    type.kind = in.u32(), type.format = in.u32(), type.size = in.u64(), type.count = in.u64(),
    type.element = in.u32();
    type.members.resize(in.count(24));
    for (LayoutMember& member : type.members)
      member.name = in.text(), member.type = in.u32(), member.bit_offset = in.u64(), member.bit_width = in.u64();
  }
}

void encode_names(Out& out, const Image& image) {
  out.u32(image.modules.size());
  for (const ModuleName& module : image.modules) out.text(module.file), out.u64(module.source_hash);
  out.u32(image.functions.size());
  for (const FunctionName& function : image.functions)
    out.text(function.file), out.text(function.name), out.u64(function.source_hash), out.u64(function.address),
        out.u32(function.module);
  out.u32(image.foreign.size());
  for (const ForeignName& foreign : image.foreign) out.text(foreign.name), out.u64(foreign.address);
  out.u32(image.allocations.size());
  for (const AllocationSite& site : image.allocations)
    out.text(site.file), out.text(site.function), out.u32(site.line), out.u32(site.column), out.u32(site.type),
        out.u32(site.module);
}

void decode_names(In& in, Image& image) {
  image.modules.resize(in.count(12));
  for (ModuleName& module : image.modules) module.file = in.text(), module.source_hash = in.u64();
  image.functions.resize(in.count(28));
  for (FunctionName& function : image.functions) {
    function.file = in.text(), function.name = in.text();
    function.source_hash = in.u64(), function.address = in.u64(), function.module = in.u32();
  }
  image.foreign.resize(in.count(12));
  for (ForeignName& foreign : image.foreign) foreign.name = in.text(), foreign.address = in.u64();
  image.allocations.resize(in.count(20));
  for (AllocationSite& site : image.allocations)
    site.file = in.text(), site.function = in.text(), site.line = in.u32(), site.column = in.u32(),
    site.type = in.u32(), site.module = in.u32();
}

void encode_state(Out& out, const Image& image) {
  out.u32(image.objects.size());
  for (const Object& object : image.objects) {
    out.u32(object.kind), out.u32(object.flags), out.u64(object.address), out.u64(object.size), out.u32(object.type);
    out.u32(object.line), out.u64(object.data), out.text(object.file), out.text(object.name);
    out.u64(object.source_hash), out.u32(object.allocation), out.u32(object.module);
  }
  out.u32(image.frames.size());
  for (const FrameState& frame : image.frames) {
    out.u32(frame.function), out.u32(frame.site), out.u32(frame.sites), out.u32(frame.line), out.text(frame.callee);
    out.u32(frame.first_slot), out.u32(frame.slot_count);
  }
}

void decode_state(In& in, Image& image) {
  image.objects.resize(in.count(64));
  for (Object& object : image.objects) {
    object.kind = in.u32(), object.flags = in.u32(), object.address = in.u64(), object.size = in.u64();
    object.type = in.u32(), object.line = in.u32(), object.data = in.u64();
    object.file = in.text(), object.name = in.text(), object.source_hash = in.u64();
    object.allocation = in.u32(), object.module = in.u32();
  }
  image.frames.resize(in.count(28));
  for (FrameState& frame : image.frames) {
    frame.function = in.u32(), frame.site = in.u32(), frame.sites = in.u32(), frame.line = in.u32();
    frame.callee = in.text();
    frame.first_slot = in.u32(), frame.slot_count = in.u32();
  }
}

void need(bool right, const char* text) {
  if (!right) throw Refused{std::string("the image is wrong: ") + text};
}

void check_object(const Image& image, const Object& object) {
  const std::size_t types = image.layouts.types.size();
  need(object.kind <= kObjectSlot, "an object is of no known kind");
  need(object.type < types, "an object has no type");
  need(object.size < std::uint64_t{1} << 46, "an object is too large");
  need(object.address <= ~object.size, "an object is beyond all memory");
  const LayoutType& type = image.layouts[object.type];
  if (object.kind == kObjectHeap) {
    need(object.allocation < image.allocations.size(), "a block has no allocation");
    need(image.allocations[object.allocation].type == object.type, "a block is of another type than its allocation");
    need(object.flags < 48, "a block is aligned to more than there is");
    (void)shape_of(image.layouts, object.type, object.size);
  } else {
    need(type.size <= object.size, "an object is shorter than its type");
  }
  if (object.data == kNoData) return need(object.kind < kObjectHeap, "an object has no bytes");
  need(object.data <= image.byte_count() && object.size <= image.byte_count() - object.data,
       "an object's bytes are beyond the image");
}

void check(const Image& image) {
  check_layouts(image.layouts);
  auto module = [&](std::uint32_t index) {
    need(index == kNoModule || index < image.modules.size(), "a name is of no file");
  };
  for (const FunctionName& function : image.functions) module(function.module);
  for (const AllocationSite& site : image.allocations) module(site.module);
  for (const Object& object : image.objects) module(object.module);
  for (const AllocationSite& site : image.allocations)
    need(site.type == kNoType || site.type < image.layouts.types.size(), "an allocation has no type");
  for (const Object& object : image.objects) check_object(image, object);
  for (const FrameState& frame : image.frames) {
    need(frame.function < image.functions.size(), "a frame has no function");
    need(frame.first_slot <= image.objects.size() && frame.slot_count <= image.objects.size() - frame.first_slot,
         "a frame's variables are beyond the table");
    for (std::uint32_t i = 0; i < frame.slot_count; i++)
      need(image.objects[frame.first_slot + i].kind == kObjectSlot, "a frame's variable is none");
  }
}

}  // namespace

std::vector<unsigned char> encode(const Image& image, std::uint64_t byte_count) {
  Out out;
  out.raw(kStreamMagic, sizeof kStreamMagic);
  out.u32(kImageVersion), out.u32(image.layouts.big_endian), out.u32(image.layouts.pointer_size);
  out.text(image.target), out.text(image.version);
  out.u32(image.member), out.u64(image.visits);
  encode_types(out, image.layouts);
  encode_names(out, image);
  encode_state(out, image);
  out.u64(byte_count);
  return out.take();
}

Image decode(std::vector<unsigned char> stream) {
  In in(stream);
  if (std::memcmp(in.raw(sizeof kStreamMagic), kStreamMagic, sizeof kStreamMagic) != 0)
    throw Refused{"this is no portable image"};
  if (const std::uint32_t version = in.u32(); version != kImageVersion)
    throw Refused{"the image is of version " + std::to_string(version) + "; this shadowib reads version " +
                  std::to_string(kImageVersion)};
  Image image;
  const std::uint32_t order = in.u32();
  image.layouts.big_endian = order == 1;
  image.layouts.pointer_size = in.u32();
  need(order <= 1, "its byte order is unknown");
  need(image.layouts.pointer_size == 4 || image.layouts.pointer_size == 8, "its pointers have an unknown size");
  image.target = in.text(), image.version = in.text();
  image.member = in.u32(), image.visits = in.u64();
  decode_types(in, image.layouts);
  decode_names(in, image);
  decode_state(in, image);
  const std::uint64_t count = in.u64();
  need(count == in.left(), "its bytes are more or fewer than it says");
  image.first_byte = stream.size() - count;
  image.stream = std::move(stream);
  check(image);
  return image;
}

Image read_image(const std::string& path) { return decode(read_pages(path)); }

std::uint64_t value_bytes(const Image& image, const Object& object) {
  const LayoutType& type = image.layouts[object.type];
  return object.kind == kObjectHeap || open_member(image.layouts, type) >= 0 ? object.size : type.size;
}

std::string function_text(const std::string& name) {
  const std::string readable = readable_name(name);
  return readable == name ? name + "()" : readable;
}

std::string object_name(const Image& image, const Object& object) {
  const std::string name =
      object.name.empty() ? "a value between two steps of an expression" : readable_name(object.name);
  switch (object.kind) {
    case kObjectHeap: {
      const AllocationSite& site = image.allocations[object.allocation];
      return "the block allocated at " + site.file + ":" + std::to_string(site.line);
    }
    case kObjectSlot:
      return name + " of " + function_text(object.file) +
             (object.line ? ", line " + std::to_string(object.line) : "");
    case kObjectLiteral:
      return "the literal " + name + " of " + object.file;
    default:
      return name + " of " + object.file;
  }
}

AddressIndex::AddressIndex(const Image& image) {
  places_.reserve(image.objects.size() + image.functions.size() + image.foreign.size());
  auto add_objects = [&](bool blocks) {
    for (std::uint32_t i = 0; i < image.objects.size(); i++) {
      const Object& object = image.objects[i];
      if (object.address && (object.kind == kObjectHeap) == blocks)
        places_.push_back({object.address, object.address + object.size, Target::kObject, i});
    }
  };
  auto by_begin = [](const Place& a, const Place& b) { return a.begin < b.begin; };
  // Blocks are most of all, and are written in the order of their addresses.
  add_objects(true);
  const std::ptrdiff_t blocks = std::ssize(places_);
  if (!std::is_sorted(places_.begin(), places_.end(), by_begin)) std::sort(places_.begin(), places_.end(), by_begin);
  add_objects(false);
  for (std::uint32_t i = 0; i < image.functions.size(); i++) {
    const std::uint64_t address = image.functions[i].address;
    if (address) places_.push_back({address, address, Target::kFunction, i});
  }
  for (std::uint32_t i = 0; i < image.foreign.size(); i++)
    places_.push_back({image.foreign[i].address, image.foreign[i].address, Target::kForeign, i});
  std::sort(places_.begin() + blocks, places_.end(), by_begin);
  std::inplace_merge(places_.begin(), places_.begin() + blocks, places_.end(), by_begin);
}

Target AddressIndex::find(std::uint64_t address) const {
  if (address == 0) return {};
  auto at = std::upper_bound(places_.begin(), places_.end(), address,
                             [](std::uint64_t wanted, const Place& place) { return wanted < place.begin; });
  // Empty objects and ends of others may share an address: an object that begins there comes first.
  if (at == places_.begin()) return {Target::kNowhere, 0, 0};
  const Place& place = *--at;
  if (address > place.end) return {Target::kNowhere, 0, 0};
  return {place.kind, place.index, address - place.begin};
}

}  // namespace shadowib::portable
