// Running tasks on the process's threads, and memory that threads reuse.
#pragma once
#include <cstddef>
#include <cstdint>
#include <new>

namespace gs {

// Calls fn(ctx, task) for every task in [0, tasks) on at most `threads` threads. Which thread takes a
// task is not fixed: tasks must not share what they write.
void parallel(int64_t tasks, int threads, void (*fn)(void*, int64_t), void* ctx);

template <class F>
void parallel_for(int64_t tasks, int threads, F&& body) {
  parallel(tasks, threads, [](void* ctx, int64_t task) { (*static_cast<F*>(ctx))(task); }, &body);
}

// Aligned memory that grows and is kept for the next call of the same thread.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { release(); }
  // At least `bytes` bytes; contents undefined.
  void* get(size_t bytes);
  void release();
  template <class T>
  T* as(int64_t count) {
    return static_cast<T*>(get(static_cast<size_t>(count) * sizeof(T)));
  }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

// Buffers of the calling thread. `shared` ones belong to the thread that makes a call and are read by
// its workers; `local` ones are private to a task.
enum SharedSlot { PACKED_X, PACKED_G, WEIGHTS, OFFSETS, BOUNDS, PARTIAL, SHARED_SLOTS };
enum LocalSlot { TILE_X, TILE_G, SCRATCH, QUEUE, CURSOR, NOISE, LOCAL_SLOTS };
Buffer& shared_buffer(SharedSlot);
Buffer& local_buffer(LocalSlot);
void release_buffers();

}  // namespace gs
