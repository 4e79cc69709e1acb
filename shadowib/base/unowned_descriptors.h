// Descriptors that one of our threads has for a moment before they are owned, or without ever being owned. A child
// that another thread forks meanwhile has them, too, and could not tell them from the program's. They would be in its
// image, and a restart would look for what they are open on.
#pragma once

namespace shadowib {

// The calling thread has such descriptors, if any, between the two: a fork of another thread waits for that, and a
// thread that begins waits for a fork under way. Both give up after a while (kLongestMs): a file system may hang, and
// a checkpoint may stop a thread that is about to fork. A few instructions while nobody forks; nest;
// async-signal-safe. Not around what waits for another thread.
void begin_unowned_descriptors();
void end_unowned_descriptors();

// Whether those waits never give up. For tests that show what they are for: a fork may take long beside other load.
// Any thread, while nobody waits. False at first.
void wait_for_forks_without_end(bool without_end);

class [[nodiscard]] UnownedDescriptors {
 public:
  UnownedDescriptors() { begin_unowned_descriptors(); }
  ~UnownedDescriptors() { end_unowned_descriptors(); }
  // Moves `fd` to a high number, sets CLOEXEC, marks it ours (base/descriptors.h) and closes the low one. Returns the
  // new number, or -1 with errno; on failure `fd` is left open and unmarked.
  int own(int fd) const;
  // Marks `fd` ours where it is: for a process that has no second descriptor left. Returns fd, or -1.
  int own_in_place(int fd) const;
  UnownedDescriptors(const UnownedDescriptors&) = delete;
  UnownedDescriptors& operator=(const UnownedDescriptors&) = delete;
};

}  // namespace shadowib
