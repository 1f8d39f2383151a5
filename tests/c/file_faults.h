/* Included before csrc/, so that the test can let reads and writes of files be short, interrupted or refused. */
long faulty_pread(int fd, void *p, unsigned long size, long at);
long faulty_pwrite(int fd, const void *p, unsigned long size, long at);

#define TH_PREAD faulty_pread
#define TH_PWRITE faulty_pwrite
