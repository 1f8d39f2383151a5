// The function of bench/real_time.py for Spark's own operator, transformWithState.

import java.sql.Timestamp

import org.apache.spark.sql.{DataFrame, Encoders}
import org.apache.spark.sql.streaming._

case class Reading(key: Long, at: Long, event: Timestamp)
case class Due(key: Long, at: Long, rows: Long)

/** A timer for each row; with `byClock` of processing time, 100 ms behind the clock. */
class TimersInScala(byClock: Boolean) extends StatefulProcessor[Long, Reading, Due] {
  @transient private var count: ValueState[Long] = _

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit =
    count = getHandle.getValueState[Long]("count", Encoders.scalaLong, TTLConfig.NONE)

  override def handleInputRows(key: Long, rows: Iterator[Reading], timers: TimerValues): Iterator[Due] = {
    rows.foreach { row =>
      count.update((if (count.exists()) count.get() else 0L) + 1)
      val from = if (byClock) timers.getCurrentProcessingTimeInMs() else row.at
      getHandle.registerTimer(from + (if (key >= 0) 100 else 3600000))
    }
    Iterator.empty
  }

  override def handleExpiredTimer(key: Long, timers: TimerValues, due: ExpiredTimerInfo): Iterator[Due] =
    Iterator(Due(key, due.getExpiryTimeInMs(), count.get()))
}

object TimersInScala {
  def result(rows: DataFrame, byClock: Boolean): DataFrame = {
    import rows.sparkSession.implicits._
    val timed = if (byClock) rows else rows.withWatermark("event", "0 seconds")
    val mode = if (byClock) TimeMode.ProcessingTime() else TimeMode.EventTime()
    timed.as[Reading].groupByKey(_.key)
      .transformWithState(new TimersInScala(byClock), mode, OutputMode.Update()).toDF()
  }
}
