#include "libraries/portable/image/values.h"

#include <algorithm>
#include <cstdio>
#include <tuple>
#include <vector>

#include "libraries/portable/image/content.h"
#include "libraries/portable/image/names.h"
#include "libraries/portable/image/numbers.h"
#include "libraries/portable/image/pages.h"
#include "libraries/portable/image/pointee.h"
#include "libraries/portable/image/walk.h"

namespace shadowib::portable {
namespace {

// Objects with bytes by which a program begins: globals by their names, then the frames, innermost first.
std::vector<std::uint32_t> roots(const Image& image) {
  std::vector<std::uint32_t> order;
  auto by_name = [&](std::uint32_t a, std::uint32_t b) {
    const Object &first = image.objects[a], &second = image.objects[b];
    return std::make_tuple(canonical_name(first.file), canonical_name(first.name), first.line, a) <
           std::make_tuple(canonical_name(second.file), canonical_name(second.name), second.line, b);
  };
  for (std::uint32_t i = 0; i < image.objects.size(); i++) {
    const Object& object = image.objects[i];
    if (object.kind == kObjectGlobal && object.data != kNoData) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), by_name);
  for (const FrameState& frame : image.frames) {
    const std::size_t begin = order.size();
    for (std::uint32_t i = 0; i < frame.slot_count; i++) order.push_back(frame.first_slot + i);
    std::sort(order.begin() + static_cast<std::ptrdiff_t>(begin), order.end(), by_name);
  }
  return order;
}

std::uint64_t address_at(const Layouts& layouts, const LayoutType& type, const unsigned char* at) {
  return load_whole(at, 0, type.size * 8, false, layouts.big_endian).low;
}

Whole whole_at(const Layouts& layouts, const LayoutType& type, const unsigned char* at, std::uint64_t bit,
               std::uint64_t width) {
  const bool with_sign = type.kind == kTypeSigned || type.kind == kTypeBits;
  return load_whole(at, bit, width ? width : type.size * 8, with_sign, layouts.big_endian);
}

class Digest : public Walk {
 public:
  explicit Digest(const Image& image)
      : Walk(image.layouts), image_(image), index_(image), number_(image.objects.size()) {}

  std::uint64_t all() {
    for (const FrameState& frame : image_.frames)
      text(canonical_name(image_.functions[frame.function].name)), number(frame.site);
    for (std::uint32_t root : roots(image_)) reach(root);
    for (std::size_t next = 0; next < order_.size(); next++) {
      const Object& object = image_.objects[order_[next]];
      if (object.data == kNoData) continue;
      number('O');
      this->object(object.type, image_.data(object), value_bytes(image_, object));
    }
    return content_hash(stream_.data(), stream_.size(), hash_);
  }

 private:
  void number(std::uint64_t value) {
    unsigned char bytes[8];
    put_le(bytes, value, 8);
    stream_.insert(stream_.end(), bytes, bytes + 8);
    if (stream_.size() < (1 << 16)) return;
    hash_ = content_hash(stream_.data(), stream_.size(), hash_);
    stream_.clear();
  }
  void text(const std::string& text) { number(content_hash(text.data(), text.size(), text.size())); }

  std::uint64_t reach(std::uint32_t object) {
    if (!number_[object]) {
      order_.push_back(object);
      number_[object] = order_.size();
    }
    return number_[object];
  }

  void value(TypeIndex index, const unsigned char* at, std::uint64_t bit, std::uint64_t width) override {
    const LayoutType& type = layouts_[index];
    if (type.kind == kTypePointer) return pointer(address_at(layouts_, type, at), type.element);
    if (type.kind == kTypeFloat) {
      const Real real = load_real(at, type.size, type.format, layouts_.big_endian);
      number(real.kind * 2U + real.negative), number(static_cast<std::uint64_t>(std::int64_t{real.exponent}));
      number(real.high), number(real.low);
    } else if (is_integer(type)) {
      const Whole whole = whole_at(layouts_, type, at, bit, width);
      number(whole.low), number(whole.high);
    } else if (type.kind == kTypeUnion && plain_union(layouts_, type)) {
      value(type.members[0].type, at, 0, 0);
    }
  }

  void pointer(std::uint64_t address, TypeIndex element) {
    const Target target = index_.find(address);
    number('P' + target.kind);
    if (target.kind == Target::kFunction) text(canonical_name(image_.functions[target.index].name));
    if (target.kind == Target::kForeign) text(image_.foreign[target.index].name);
    if (target.kind != Target::kObject) return;
    const Object& object = image_.objects[target.index];
    object.kind == kObjectLiteral ? number(object.source_hash) : number(reach(target.index));
    try {
      const Shape shape = shape_of(layouts_, object.type, value_bytes(image_, object));
      for (std::uint64_t step : way_to(layouts_, object.type, shape, target.offset, element)) number(step);
    } catch (const Refused&) {
      number(target.offset);
    }
  }

  const Image& image_;
  AddressIndex index_;
  std::vector<std::uint64_t> number_;  // of each object: when it was reached, from 1; 0: not yet
  std::vector<std::uint32_t> order_;
  std::vector<unsigned char> stream_;
  std::uint64_t hash_ = 0;
};

// Names come from a file: no control characters reach a terminal.
std::string shown(const std::string& text) {
  std::string result;
  for (char c : text) result += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return result;
}

class Printer : public Walk {
 public:
  Printer(const Image& image, std::uint64_t most) : Walk(image.layouts), image_(image), index_(image), most_(most) {}

  std::string all() {
    text_ = "member " + std::to_string(image_.member) + ", " + shown(image_.target) + ", written by shadowib " +
            shown(image_.version) + " at visit " + std::to_string(image_.visits) + " of a site\n";
    for (const FrameState& frame : image_.frames)
      text_ += "frame " + shown(function_text(image_.functions[frame.function].name)) + ", line " +
               std::to_string(frame.line) + ", in its call of " + shown(readable_name(frame.callee)) + "\n";
    for (std::uint32_t root : roots(image_)) whole(image_.objects[root]);
    for (const Object& object : image_.objects) {
      if (object.kind == kObjectHeap) whole(object);
    }
    return std::move(text_);
  }

 private:
  void whole(const Object& object) {
    const std::uint64_t size = value_bytes(image_, object);
    path_ = {shown(object_name(image_, object))};
    text_ +=
        path_[0] + ": " + shown(type_name(layouts_, object.type)) + ", " + std::to_string(object.size) + " bytes\n";
    this->object(object.type, image_.data(object), size);
  }

  void enter(const std::string& member, std::uint64_t element) override {
    path_.push_back(member.empty() ? "[" + std::to_string(element) + "]" : "." + shown(member));
    if (member.empty() && most_ && element >= most_) hidden_++;
    was_hidden_.push_back(member.empty() && most_ && element >= most_);
    if (was_hidden_.back() && element == most_ && hidden_ == 1) line("...");
  }
  void leave() override {
    hidden_ -= was_hidden_.back();
    was_hidden_.pop_back();
    path_.pop_back();
  }
  void line(const std::string& value) {
    text_ += "  ";
    for (const std::string& step : path_) text_ += step;
    text_ += " = " + value + "\n";
  }

  void value(TypeIndex index, const unsigned char* at, std::uint64_t bit, std::uint64_t width) override {
    if (hidden_) return;
    const LayoutType& type = layouts_[index];
    if (type.kind == kTypePointer) return line(pointer(address_at(layouts_, type, at)));
    if (type.kind == kTypeFloat)
      return line(portable::to_text(load_real(at, type.size, type.format, layouts_.big_endian)));
    if (is_integer(type)) return line(portable::to_text(whole_at(layouts_, type, at, bit, width)));
    if (type.kind == kTypeUnion && plain_union(layouts_, type)) return value(type.members[0].type, at, 0, 0);
    line(std::to_string(type.size) + " bytes of " + shown(type_name(layouts_, index)));
  }

  std::string pointer(std::uint64_t address) {
    const Target target = index_.find(address);
    switch (target.kind) {
      case Target::kNull:
        return "null";
      case Target::kFunction:
        return shown(function_text(image_.functions[target.index].name));
      case Target::kForeign:
        return shown(image_.foreign[target.index].name) + " of a library";
      case Target::kNowhere:
        return "a pointer to nothing";
      case Target::kObject:
        break;
    }
    std::string offset = target.offset ? " + " + std::to_string(target.offset) : "";
    return "-> " + shown(object_name(image_, image_.objects[target.index])) + offset;
  }

  const Image& image_;
  AddressIndex index_;
  std::uint64_t most_, hidden_ = 0;
  std::vector<bool> was_hidden_;
  std::vector<std::string> path_;
  std::string text_;
};

}  // namespace

std::uint64_t digest(const Image& image) { return Digest(image).all(); }

std::string to_text(const Image& image, std::uint64_t most) { return Printer(image, most).all(); }

}  // namespace shadowib::portable
