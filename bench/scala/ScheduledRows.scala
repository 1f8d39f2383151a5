// A replayable source of rows at set times, for bench/real_time.py: the time of a row is when it is due.

import java.util
import java.util.concurrent.ConcurrentHashMap
import java.util.concurrent.locks.LockSupport

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.connector.catalog.{SupportsRead, Table, TableCapability, TableProvider}
import org.apache.spark.sql.connector.expressions.Transform
import org.apache.spark.sql.connector.read._
import org.apache.spark.sql.connector.read.streaming._
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeRead.RecordStatus
import org.apache.spark.sql.types.{LongType, StructType}
import org.apache.spark.sql.util.CaseInsensitiveStringMap

/** Rows of one source: those of other keys first, all together, then a few a second, then those of a run. */
class Schedule(val sources: Int, keys: Int) extends Serializable {
  private val began = System.currentTimeMillis()
  private val few = 100.0 // ms
  private val first = keys / sources
  private var start = Long.MaxValue
  private var between = 1.0
  private var before, rows = Long.MaxValue // how many rows there are before the run, and in it

  /** Begin the run soon, with a row every so many ms from each source; return the time of the first. */
  def run(period: Double, count: Long): Long = synchronized {
    start = System.currentTimeMillis() + 500
    between = period
    before = ((start - began) / few).toLong
    rows = count
    start
  }

  /** Return the time of the row of a number, Long.MaxValue if there is none. */
  def at(number: Long): Long = synchronized {
    val timed = number - first
    if (timed < 0) began
    else if (timed < before) began + (timed * few).toLong
    else if (timed - before < rows) start + ((timed - before) * between).toLong
    else Long.MaxValue
  }

  def key(source: Int, number: Long): Long = {
    val timed = number - first
    if (timed < 0) -(number * sources + source + 1) else (timed * sources + source) % 10000
  }

  /** Return how many rows there are by now. */
  def count(from: Long): Long = {
    val now = System.currentTimeMillis()
    Iterator.iterate(from)(_ + 1).find(at(_) > now).get
  }
}

object Schedule {
  private val named = new ConcurrentHashMap[String, Schedule]()

  def make(name: String, sources: Int, keys: Int): Schedule = {
    named.put(name, new Schedule(sources, keys))
    named.get(name)
  }

  def of(name: String): Schedule = named.get(name)
}

case class Place(source: Int, number: Long) extends PartitionOffset

case class Places(numbers: Seq[Long]) extends Offset {
  override def json(): String = numbers.mkString("[", ",", "]")
}

case class Range(name: String, source: Int, from: Long, until: Long) extends InputPartition

class RowReader(range: Range) extends SupportsRealTimeRead[InternalRow] {
  private val schedule = Schedule.of(range.name)
  private var number = range.from
  private var row: InternalRow = _

  private def take(): Unit = {
    row = InternalRow(schedule.key(range.source, number), schedule.at(number))
    number += 1
  }

  override def nextWithTimeout(timeout: java.lang.Long): RecordStatus = {
    val end = System.nanoTime() + timeout * 1000000L
    while (true) {
      if (schedule.at(number) <= System.currentTimeMillis()) {
        take()
        return RecordStatus.newStatusWithoutArrivalTime(true)
      }
      val next = math.min(schedule.at(number) - System.currentTimeMillis(), 20L) * 1000000L
      if (end <= System.nanoTime()) return RecordStatus.newStatusWithoutArrivalTime(false)
      LockSupport.parkNanos(math.max(100000L, math.min(end - System.nanoTime(), next)))
    }
    null
  }

  override def next(): Boolean = number < range.until && { take(); true }
  override def get(): InternalRow = row
  override def getOffset: PartitionOffset = Place(range.source, number)
  override def close(): Unit = {}
}

object RowReaders extends PartitionReaderFactory {
  override def createReader(range: InputPartition): PartitionReader[InternalRow] =
    new RowReader(range.asInstanceOf[Range])
}

class RowStream(name: String) extends MicroBatchStream with SupportsRealTimeMode {
  private val schedule = Schedule.of(name)
  private var last = initialOffset().asInstanceOf[Places]

  private def ranges(from: Offset, until: Int => Long): Array[InputPartition] =
    from.asInstanceOf[Places].numbers.zipWithIndex
      .map { case (number, source) => Range(name, source, number, until(source)): InputPartition }.toArray

  override def initialOffset(): Offset = Places(Seq.fill(schedule.sources)(0L))
  override def latestOffset(): Offset = {
    last = Places(last.numbers.map(schedule.count))
    last
  }
  override def planInputPartitions(from: Offset): Array[InputPartition] = ranges(from, _ => Long.MaxValue)
  override def planInputPartitions(from: Offset, until: Offset): Array[InputPartition] =
    ranges(from, until.asInstanceOf[Places].numbers(_))
  override def mergeOffsets(places: Array[PartitionOffset]): Offset =
    Places(places.map(_.asInstanceOf[Place]).sortBy(_.source).map(_.number).toSeq)
  override def deserializeOffset(json: String): Offset =
    Places(json.stripPrefix("[").stripSuffix("]").split(",").map(_.toLong).toSeq)
  override def createReaderFactory(): PartitionReaderFactory = RowReaders
  override def commit(end: Offset): Unit = {}
  override def stop(): Unit = {}
}

class ScheduledRows extends TableProvider {
  private val fields = new StructType().add("key", LongType).add("at", LongType)

  override def inferSchema(options: CaseInsensitiveStringMap): StructType = fields
  override def getTable(schema: StructType, by: Array[Transform], options: util.Map[String, String]): Table =
    new Table with SupportsRead {
      override def name(): String = options.get("name")
      override def schema(): StructType = fields
      override def capabilities(): util.Set[TableCapability] = util.EnumSet.of(TableCapability.MICRO_BATCH_READ)
      override def newScanBuilder(options: CaseInsensitiveStringMap): ScanBuilder = new ScanBuilder with Scan {
        override def build(): Scan = this
        override def readSchema(): StructType = fields
        override def toMicroBatchStream(checkpoint: String): MicroBatchStream = new RowStream(name())
      }
    }
}
