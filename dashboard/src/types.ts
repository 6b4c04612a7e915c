/* Written by tools/dashboard_types.py from springtide/dashboard/documents.py. */

export interface ApiError {
  error: string;
}

export type BatchName = [number, number, number, number];

export type Blame = "infrastructure" | "none" | "user";

export interface BrainStatus {
  address: string;
  pid: number;
  up_s: number;
  database: string;
  capacity: ResourceBudget;
  held: ResourceBudget;
  executors: ExecutorCount;
  policies?: Record<string, string>;
  jobs?: LiveJob[];
  past?: number;
  unreadable?: number;
  consults?: number;
  decisions?: number;
  decision_s?: number;
  trouble?: string;
}

export interface CacheUse {
  on?: boolean;
  why?: string;
  passing?: boolean;
  rows?: number;
  size?: number;
  dirty?: number;
  hits?: number;
  pulled?: number;
  pushed?: number;
  passed?: number;
  flushes?: number;
}

export interface Candidate {
  shape: Shape;
  cost: number;
  throughput: number | null;
  chosen?: boolean;
  now?: boolean;
}

export interface Checkpoint {
  number: number;
  at: number;
  seconds: number;
  bytes: number;
  samples: number;
  kind: string;
  outcome: string;
  where: string;
  uploaded: string;
  mirror: string;
  why: string;
  kept: boolean;
  apart: string[];
  verified: boolean;
}

export interface CheckpointList {
  checkpoints: Checkpoint[];
  resume: string;
}

export interface CheckpointStatus {
  number?: number;
  begun_at?: number;
  trouble?: string;
  uploaded?: number;
  saving_last?: boolean;
}

export interface DataStatus {
  epoch?: EpochProgress | null;
  shards_done?: number;
  shards_leased?: number;
  shards_total?: number;
  epochs?: number;
  feed?: FeedState | null;
  poisoned?: Poisoned[];
  left_out?: LeftOut[];
  samples_left_out?: number;
}

export interface Done {
  what: string;
}

export interface EpochProgress {
  number: number;
  done: number;
  samples: number;
}

export interface EventList {
  events: EventRow[];
}

export interface EventRow {
  number: number;
  at: number;
  kind: string;
  text: string;
  role?: string;
  why?: string;
  inputs?: Record<string, unknown>;
  explained?: boolean;
}

export interface ExecutorCount {
  wanted: number;
  pids?: number[];
  lost?: number;
}

export interface FeedState {
  made?: number;
  taken?: number;
  queued?: number;
  room?: number;
  workers?: number;
  read_s?: number;
  waited_s?: number;
  stateless_s?: number;
  looped_s?: number;
  checked?: number;
}

export interface Forecast {
  at: number;
  step_s: number;
  mean: number[];
  high: number[];
}

export interface ForecastStatus {
  mean?: number | null;
  high?: number | null;
  why?: string;
  trouble?: string;
}

export interface GpuUse {
  memory?: number;
  allocated?: number;
  total?: number;
  busy?: number | null;
}

export interface JobHistory {
  progress?: ProgressPoint[];
  online?: OnlinePoint[];
  forecast?: Forecast | null;
  predicted?: [number, number][];
}

export interface JobList {
  jobs: JobRow[];
}

export interface JobMap {
  slots?: SlotMap;
  shards?: ShardMap;
  partitions?: PartitionLag[];
  memory?: string[];
  short_of_memory?: boolean;
}

export interface JobPage {
  name: string;
  running: boolean;
  platform: string;
  script: string;
  arguments: string[];
  began_at: number;
  now: number;
  status: JobStatus;
  mean_samples_per_s: number;
  decision: string;
  places: Record<string, string>;
  planned: boolean;
  trouble?: string;
}

export type JobPhase = "draining" | "failed" | "finished" | "running" | "starting" | "stopped";

export interface JobRow {
  name: string;
  phase: string;
  running: boolean;
  platform: string;
  script: string;
  began_at: number;
  elapsed_s: number;
  samples: number;
  samples_per_s: number;
  shards_done: number;
  shards_total: number;
  why: string;
  spark: number[];
}

export interface JobStatus {
  name: string;
  phase: JobPhase;
  why: string;
  elapsed_s: number;
  blame?: Blame;
  detail?: string;
  samples?: number;
  training?: TrainingStatus;
  data?: DataStatus;
  members?: MemberView[];
  roles?: RoleStatus;
  checkpoints?: CheckpointStatus;
  master?: MasterStatus;
  planning?: PlanningStatus;
  online?: OnlineState | null;
}

export type LeftOut = [BatchName, number[], string];

export interface LiveJob {
  name: string;
  user: string;
  stage: string;
  shape: Shape | null;
  seen_s: number;
  event?: string;
  cause?: string;
  policy?: string;
  why?: string;
  promised?: Shape | null;
}

export interface LiveUpdate {
  page: JobPage;
  history: JobHistory;
  events: EventRow[];
  whole: boolean;
}

export interface LogPage {
  roles: string[];
  lines: LogText[];
  shortened: boolean;
}

export interface LogText {
  role: string;
  text: string;
}

export interface MasterStatus {
  term?: number;
  decision?: string;
  decision_why?: string;
  loop_lag_s?: number;
  disk_trouble?: string;
}

export interface MemberReport {
  step?: number;
  samples?: number;
  loss?: number | null;
  metrics?: Record<string, number>;
  seconds?: Record<string, number>;
  counters?: Record<string, number>;
  cache?: CacheUse | null;
  feed?: FeedState | null;
  stream?: StreamUse | null;
}

export interface MemberView {
  role: Role;
  alive: boolean;
  joined: boolean;
  report?: MemberReport;
  incarnation?: number;
  state?: string;
  usage?: RoleUsage | null;
  pid?: number;
}

export interface Nothing {
}

export interface OnlinePoint {
  at: number;
  arriving: number;
  trained: number;
  lag_s: number;
  backlog: number;
  workers: number;
  wanted: number;
  forecast?: number | null;
  high?: number | null;
  capacity?: number | null;
  down?: boolean;
}

export interface OnlineState {
  lag_s: number;
  slo_lag_s: number;
  lag_p50_s?: number;
  lag_p99_s?: number;
  backlog: number;
  arriving: number;
  trained: number;
  utilization?: number | null;
  capacity?: number | null;
  why?: string;
  alert?: string;
  expected?: ForecastStatus;
  scaling?: ScalingStatus;
  totals?: OnlineTotals;
  stream?: StreamCounts;
}

export interface OnlineTotals {
  hours?: number;
  violation?: number;
  lag_min?: number;
  down_min?: number;
  worker_hours?: number;
}

export interface PartitionLag {
  partition: number;
  backlog: number;
  lag_s: number;
  owner?: number | null;
}

export type PartitionView = [number, number, number, number];

export interface PlanPage {
  policy: string;
  why: string;
  notes: string[];
  measured: number | null;
  model: string;
  shapes: string;
  candidates: Candidate[];
  least: Shape;
  most: Shape;
  now: Shape | null;
}

export interface PlanningStatus {
  stage?: string;
  shape?: Shape | null;
  target?: Shape | null;
  settled?: boolean;
}

export type Poisoned = [number, number, number, number, number, string];

export interface ProgressPoint {
  at: number;
  samples: number;
  samples_per_s: number;
  loss?: number | null;
  metrics?: Record<string, number>;
  shards_done?: number;
  workers?: number;
  servers?: number;
  data_workers?: number;
  lag_s?: number | null;
}

export interface ResourceBudget {
  cpu: number;
  memory: number;
  gpu?: number;
}

export interface Role {
  kind: RoleKind;
  rank?: number;
}

export interface RoleCount {
  alive?: number;
  wanted?: number;
}

export type RoleKind = "agent" | "data-worker" | "master" | "server" | "worker";

export interface RoleStatus {
  workers?: RoleCount;
  servers?: RoleCount;
  data_workers?: RoleCount;
  data_workers_why?: string;
  lacks?: string;
  relaunches?: number;
  slots_moving?: number;
}

export interface RoleUsage {
  role: Role;
  incarnation?: number;
  cpu_s?: number;
  memory?: number;
  cpu_limit?: number | null;
  memory_limit?: number | null;
  throttled_s?: number;
  gpu?: GpuUse | null;
}

export interface ScaleOrder {
  workers?: number | null;
  servers?: number | null;
  data_workers?: number | null;
}

export interface ScalingStatus {
  fewest?: number;
  most?: number;
  changes?: number;
}

export interface ServerInfo {
  version: string;
  folder: string;
  job: string;
  brain: boolean;
  control: boolean;
}

export interface Shape {
  workers: number;
  servers: number;
  worker_cpu: number;
  server_cpu: number;
  worker_memory?: number;
  server_memory?: number;
  worker_gpu?: number;
}

export interface ShardMap {
  states?: string;
  total?: number;
}

export interface SlotMap {
  owners?: number[];
  bytes?: number[];
  requests?: number[];
  goals?: Record<string, number>;
  epoch?: number;
}

export type StepSums = [number, number, number, number, number];

export interface StreamCounts {
  records?: number;
  late?: number;
  corrupt?: number;
  oversized?: number;
  unkept?: number;
  unkept_why?: string;
  expired?: number;
  forwarded?: number;
}

export interface StreamUse {
  records?: number;
  late?: number;
  corrupt?: number;
  oversized?: number;
  unkept?: number;
  unkept_why?: string;
  expired?: number;
  forwarded?: number;
  partitions?: PartitionView[];
  queue?: number;
  waited_s?: number;
  busy_s?: number;
  steps?: StepSums;
  lag_p50_s?: number;
  lag_p99_s?: number;
}

export interface TrainingStatus {
  trained_s?: number;
  samples_before?: number;
  samples_per_s?: number;
  loss?: number | null;
  metrics?: Record<string, number>;
  staleness?: number | null;
  staleness_p50?: number | null;
  cache?: CacheUse | null;
}

export interface TriedShape {
  shape: Shape;
  cost?: number | null;
  throughput?: number | null;
  allowed?: boolean;
  why?: string;
}
