// Keeps the trainer's signals away from the library's own threads.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace tidepool::inline v0_3_0::detail {

// Threads that are started while this object lives take no signals, because signals are for the
// trainer's threads.
class quiet {
 public:
  quiet() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  quiet(const quiet&) = delete;
  quiet& operator=(const quiet&) = delete;
  ~quiet() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

}  // namespace tidepool::detail
