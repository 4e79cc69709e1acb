// A minimal way to stop threads, so that the imager can be tested by itself: each thread parks in a signal handler.
#pragma once

namespace shadowib::test {

// Installs the handler. `on_alternate_stack`: SA_ONSTACK.
void install_stop_handler(bool on_alternate_stack);
// Parks every other thread of the process; they wait until release_all.
void stop_all();
void release_all();

}  // namespace shadowib::test
